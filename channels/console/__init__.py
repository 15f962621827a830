"""The command line: what a person or a script asks for, and how it is shown."""
