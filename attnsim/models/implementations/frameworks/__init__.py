"""What frameworks launch one operation at a time."""
