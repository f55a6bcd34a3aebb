"""A Python interpreter for what a policy writes, in processes that end with each call.

    trainer --code--> host --forks--> one process per call, inside walls
            <-result--     <-output--

`tool.Python` is the way in.
"""
