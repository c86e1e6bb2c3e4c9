"""Taking measurements on a GPU, and the records that come back."""
