"""Certificates for TLS to ZooKeeper, made from the cluster's key.

The key derives the private key of an authority, so all who have it have the same authority, and
nobody else has. Each process signs itself a certificate with a key of its own. They never expire:
another key of the cluster ends them. Names are not checked, since the key proves enough.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from horn.security.keys import Key, TlsIdentity

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256 (FIPS 186)
# Clocks of hosts do not matter. The end is RFC 5280's for "no well-defined expiration date".
_BEGIN, _END = (
    datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
)


class CertificateAuthority:
    """The authority of the holders of a key."""

    def __init__(self, key: Key) -> None:
        number = int.from_bytes(key.derive("zookeeper tls authority"))
        self._private = ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())
        self._name = _name(f"horn cluster {key.fingerprint}")
        self._own = self._certificate(self._name, self._private.public_key(), ())
        self.certificate = _pem(self._own)

    def trust(self, role: str) -> TlsIdentity:
        """Make a new "client" or "server". A client's, which tasks have, cannot be a server's."""
        private = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role == "server":
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        own = self._certificate(_name(f"horn {role}"), private.public_key(), uses)
        secret: bytes = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return TlsIdentity(self.certificate, secret.decode() + _pem(own))

    def _certificate(
        self,
        name: x509.Name,
        public: ec.EllipticCurvePublicKey,
        uses: Sequence[x509.ObjectIdentifier],
    ) -> x509.Certificate:
        is_authority = not uses
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_BEGIN)
            .not_valid_after(_END)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(_usage(is_authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._private.public_key()),
                critical=False,
            )
        )
        if uses:
            made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=True)
        return made.sign(self._private, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(certificate: x509.Certificate) -> str:
    found: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return found.decode()
