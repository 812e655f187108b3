"""The server's side: enrolment, questions, sums and scores."""
