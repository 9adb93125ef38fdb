"""Why a TLS handshake failed, in words for a person."""

from __future__ import annotations

import ssl

REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS, and this port speaks nothing else",
    "HTTP_REQUEST": "it speaks HTTP without TLS; this port wants https",
    "HTTPS_PROXY_REQUEST": "it asks for a proxy; this port is none",
    "UNSUPPORTED_PROTOCOL": "its TLS is older than tls.min_version",
    "NO_SHARED_CIPHER": "it has no cipher in common with this server",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, which tls.fail_if_no_peer_cert wants",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of this server's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it wants another version of TLS",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "to it this server's certificate has ended",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this server's certificate",
}
"""OpenSSL's words in ours; others are told as they are."""


def why(error: OSError | EOFError) -> str | None:
    """The reason; None for who left before he said anything: a probe of the port."""
    if isinstance(error, ConnectionResetError | BrokenPipeError | EOFError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return str(error)
