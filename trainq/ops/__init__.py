"""One function per verb of the command line. They return values and never print."""
