"""A Python interpreter for code that a policy writes, in processes that end with each call.

    trainer --code--> host --code, in a file--> one process per call, inside walls
            <-result--     <---output----------
                           --which pipes--> zygote, which forks it

The zygote has the modules loaded, and sees neither code nor output: no program inherits the output of an
earlier one. `tool.Python` is the entry point.
"""
