"""A prebuilt job: `settings` reads its file, `home` is what Spark starts from, `job` starts it, `progress` adds up
what it has read.
"""
