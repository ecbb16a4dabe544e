"""What pipelines of several families need to hear a recording of any length piece by piece."""
