"""The paper's figures in small: finished runs become pictures and verdicts on the paper's claims."""
