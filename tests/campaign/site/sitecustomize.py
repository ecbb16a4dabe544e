"""Python imports it in each process whose path has this folder: those of a campaign on real processes."""

import importlib
import os

from campaign import seams

seams.install()
# What a test breaks on purpose.
if broken := os.environ.get("CAMPAIGN_IMPORTS"):
    importlib.import_module(broken)
