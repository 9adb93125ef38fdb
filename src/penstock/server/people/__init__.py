"""Who may log in, and what they may do; users, vhosts and permissions of run time.  It knows no door."""
