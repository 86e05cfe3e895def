"""Which form of the torture runs."""

import os

IS_FULL = os.environ.get("KERAS_ODGP_STRESS") == "full"
