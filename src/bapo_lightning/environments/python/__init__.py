"""A Python interpreter for what a policy writes, in processes that end with each call.

    trainer --code--> host --code, in a file--> one process per call, inside walls
            <-result--     <---output----------
                           --which pipes--> zygote, which forks it

The zygote has the modules loaded, and sees neither code nor output: no program inherits what one before it
said. `tool.Python` is the way in.
"""
