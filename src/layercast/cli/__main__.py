"""`python -m layercast.cli`, for where the installed command is not on the path."""

from layercast.cli.main import main

main()
