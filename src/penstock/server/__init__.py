"""The shell: event loop, listeners, sessions, timers.  The one place where core, log, memory and wire meet."""
