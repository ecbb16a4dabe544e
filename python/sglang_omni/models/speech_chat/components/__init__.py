"""The models of the pipeline, each behind a class of its own."""
