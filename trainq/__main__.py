"""`python -m trainq` is `trainq`."""

from trainq.cli.main import main

main()
