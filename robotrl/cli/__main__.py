"""`python -m robotrl.cli`: the command line where the script `robotrl` is not on the path."""

import sys

from robotrl.cli.main import main

sys.exit(main())
