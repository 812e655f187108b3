"""The server's side: who takes part, what is asked, and the sums that it learns."""
