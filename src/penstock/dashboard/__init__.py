"""The dashboard: files of one page, which the HTTP door serves as they are (`wire.http.app`)."""
