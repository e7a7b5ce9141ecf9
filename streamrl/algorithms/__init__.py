"""The algorithms: advantage x loss x proximal x correction x aggregation are independent choices.
It imports `streamrl.config`, numpy and torch.
Each module ends with a table of its functions by the names that the configuration uses. A new one is a pure function
there and a line in the table (and its name in the schema, and a row of docs/guides/algorithms.md). Advantages need
no torch, so neither do those who only plan a step.
"""
