"""A prebuilt job: `settings` reads its file, `job` starts it, `progress` adds up what it has read."""
