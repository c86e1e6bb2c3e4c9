"""Every result for people: as tables and text, and a study as one page that answers its question."""
