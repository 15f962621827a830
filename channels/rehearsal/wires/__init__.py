"""The wire formats that the stand-in provider speaks: what a request must be, and what an answer looks like."""
