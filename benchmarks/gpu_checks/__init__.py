"""The steps of gpu_check.py. Nothing of layercast is imported before a step runs: it may have to be built first."""
