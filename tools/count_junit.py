"""Prints how many tests of a JUnit file passed, failed and were skipped: count_junit.py FILE."""

import sys
import xml.etree.ElementTree as ElementTree

passed = failed = skipped = 0
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    # ctest marks by attribute what pytest marks by child element.
    marks = {child.tag for child in case} | {case.get("status", "run")}
    if marks & {"failure", "error", "fail"}:
        failed += 1
    elif marks & {"skipped", "notrun", "disabled"}:
        skipped += 1
    else:
        passed += 1
print(passed, failed, skipped)
