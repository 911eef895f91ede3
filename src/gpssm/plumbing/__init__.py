"""What every package needs and no paper speaks of: files that are whole, checks of arguments, precision, interrupts."""
