"""The paper's figures in small: from finished runs to pictures, and to verdicts on what the paper says."""
