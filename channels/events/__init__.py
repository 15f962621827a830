"""What receivers are told: the types of events, and what each of them says."""
