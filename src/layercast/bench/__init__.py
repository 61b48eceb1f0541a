"""What `layercast bench` measures: limits of the machine and this library, in one run."""
