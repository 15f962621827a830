"""What a delivery does next: pure, fed with outcomes and times, shared by every channel's sender."""
