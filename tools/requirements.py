"""Prints requirements that pyproject.toml lists, so that versions stand there only.

Usage: requirements.py build|EXTRA
"""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
wanted = sys.argv[1]
if wanted == "build":
    requirements = project["build-system"]["requires"]
else:
    requirements = project["project"]["optional-dependencies"][wanted]
print(*(requirement.replace(" ", "") for requirement in requirements))
