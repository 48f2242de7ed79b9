"""python -m tileoverlap"""

import sys

from tileoverlap.cli import main

sys.exit(main())
