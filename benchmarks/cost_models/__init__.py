"""The Campo paper's performance models at the paper's number of samples, on the CPU provider."""
