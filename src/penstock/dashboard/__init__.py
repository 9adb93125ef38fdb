"""The dashboard: files of one page, which the HTTP door serves as they are (`server.http.reception`)."""
