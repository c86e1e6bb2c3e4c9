"""Who runs it: a file for each library or project that can be imitated."""
