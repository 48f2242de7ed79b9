// A shared library of which only the name counts.
