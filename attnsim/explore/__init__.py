"""`attnsim explore`: a page on this machine in which one turns a GPU and a question, and sees the answer move."""
