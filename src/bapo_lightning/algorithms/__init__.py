"""One file per objective: (token table) -> objective of every token, to be maximised."""
