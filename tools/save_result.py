"""Keeps what a benchmark or test wrote as a result of the repository: results/NAME.json.

    save_result.py NAME FILE --command COMMAND --device DEVICE --driver DRIVER
                   [--commit COMMIT] [--note TEXT]

The result says which commit, device, driver and command it comes from. FILE is JSON, or text that
is kept line by line.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("file", type=pathlib.Path)
    for option in ("--command", "--device", "--driver"):
        parser.add_argument(option, required=True)
    parser.add_argument("--commit", help="that was measured; HEAD unless given")
    parser.add_argument("--note")
    options = parser.parse_args()
    text = options.file.read_text()
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        data = text.splitlines()
    head = ["git", "-C", str(ROOT), "rev-parse", "--short", options.commit or "HEAD"]
    commit = subprocess.check_output(head, text=True).strip()
    result = {
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "device": options.device,
        "driver": options.driver,
        "command": options.command,
        **({"note": options.note} if options.note else {}),
        "data": data,
    }
    path = ROOT / "results" / f"{options.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
