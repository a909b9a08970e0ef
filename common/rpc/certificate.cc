#include "common/rpc/certificate.h"

#include <arpa/inet.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/rpc/openssl.h"
#include "common/rpc/pem_file.h"

namespace espalier {
namespace {

constexpr absl::string_view kRoleUri = "espalier:role/";
constexpr absl::string_view kIssueAdvice = "issue a new one with `espalier pki issue`";

std::string CommonName(const X509_NAME* name) {
  const int index = X509_NAME_get_index_by_NID(const_cast<X509_NAME*>(name), NID_commonName, -1);
  if (index < 0) return "(no name)";
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, index));
  // Escaped, because a foreign certificate may put anything here and it ends on a terminal.
  return absl::CHexEscape(
      absl::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                        static_cast<size_t>(ASN1_STRING_length(text))));
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm fields = {};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTM(fields, absl::UTCTimeZone());
}

std::string When(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string StringOf(const ASN1_STRING* text) {
  return absl::CHexEscape(
      absl::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                        static_cast<size_t>(ASN1_STRING_length(text))));
}

std::string IpText(const ASN1_OCTET_STRING* bytes) {
  char buffer[INET6_ADDRSTRLEN] = {};
  const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
  if (ASN1_STRING_length(bytes) != 4 && ASN1_STRING_length(bytes) != 16) return "(bad address)";
  inet_ntop(family, ASN1_STRING_get0_data(bytes), buffer, sizeof buffer);
  return buffer;
}

void ReadAlternativeNames(X509* certificate, CertificateInfo& info) {
  const openssl::Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  if (names == nullptr) return;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_IPADD) info.addresses.push_back(IpText(name->d.iPAddress));
    if (name->type == GEN_DNS) info.addresses.push_back(StringOf(name->d.dNSName));
    if (name->type != GEN_URI) continue;
    const std::string uri = StringOf(name->d.uniformResourceIdentifier);
    if (!absl::StartsWith(uri, kRoleUri)) continue;
    const absl::StatusOr<Role> role = ParseRole(absl::StripPrefix(uri, kRoleUri));
    if (role.ok()) info.role = *role;
  }
}

CertificateInfo Describe(X509* certificate) {
  CertificateInfo info;
  info.name = CommonName(X509_get_subject_name(certificate));
  info.issuer = CommonName(X509_get_issuer_name(certificate));
  info.not_before = ToTime(X509_get0_notBefore(certificate));
  info.not_after = ToTime(X509_get0_notAfter(certificate));
  const ASN1_INTEGER* serial = X509_get0_serialNumber(certificate);
  info.serial = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(serial)),
                        static_cast<size_t>(ASN1_STRING_length(serial))));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  X509_digest(certificate, EVP_sha256(), digest, &size);
  info.fingerprint =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  info.is_ca = X509_check_ca(certificate) > 0;
  ReadAlternativeNames(certificate, info);
  return info;
}

absl::StatusOr<openssl::Certificate> Parse(absl::string_view pem) {
  openssl::Certificate certificate = openssl::ParseCertificate(pem);
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(absl::StrCat(
      "no certificate in PEM form (-----BEGIN CERTIFICATE-----): ", openssl::TakeError()));
}

absl::string_view UseName(CertificateUse use) {
  return use == CertificateUse::kServer ? "a server" : "a client";
}

std::string OtherCa(const CertificateInfo& info, const CertificateInfo& ca) {
  const std::string trusted =
      info.issuer == ca.name
          ? absl::StrCat("another CA of the same name is trusted here (fingerprint ",
                         ca.fingerprint.substr(0, 16), "...)")
          : absl::StrCat("this side trusts the CA \"", ca.name, "\"");
  return absl::StrCat("certificate \"", info.name, "\" was signed by the CA \"", info.issuer,
                      "\", but ", trusted,
                      "; both sides need certificates of one CA: ", kIssueAdvice);
}

// What OpenSSL's verdict means for a person. `faulty` is the certificate it is about: the leaf or
// the CA.
absl::Status Refusal(int error, const CertificateInfo& info, const CertificateInfo& ca,
                     const CertificateInfo& faulty, CertificateUse use, absl::Time now) {
  const std::string subject =
      absl::StrCat(faulty.is_ca ? "CA certificate \"" : "certificate \"", faulty.name, "\"");
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::UnauthenticatedError(absl::StrCat(
          subject, " expired on ", When(faulty.not_after), " (now: ", When(now), "); ",
          faulty.is_ca ? "make a new CA with `espalier pki init --force` and issue all anew"
                       : kIssueAdvice));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::UnauthenticatedError(
          absl::StrCat(subject, " is not valid before ", When(faulty.not_before),
                       ", and the clock here says ", When(now), "; check the clocks"));
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return absl::UnauthenticatedError(OtherCa(info, ca));
    case X509_V_ERR_INVALID_PURPOSE:
      return absl::UnauthenticatedError(absl::StrCat(
          subject, " (role ", info.role.has_value() ? RoleName(*info.role) : "none",
          ") is not meant for ", UseName(use),
          use == CertificateUse::kServer ? "; espalierd needs one with --role coordinator" : ""));
    default:
      return absl::UnauthenticatedError(
          absl::StrCat(subject, " is not accepted: ", X509_verify_cert_error_string(error)));
  }
}

absl::Status CheckKey(const TlsFiles& files, X509* certificate, absl::string_view key_pem) {
  const openssl::Key key = openssl::ParseKey(key_pem);
  if (key == nullptr) {
    return absl::UnauthenticatedError(absl::StrCat(
        files.key, ": no private key in PEM form without a password: ", openssl::TakeError()));
  }
  if (X509_check_private_key(certificate, key.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return absl::UnauthenticatedError(absl::StrCat(files.key, " is not the key of ",
                                                 files.certificate,
                                                 "; the two are made together by `espalier pki`"));
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::UnauthenticatedError(absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<CertificateInfo> DescribeCertificate(absl::string_view pem) {
  ASSIGN_OR_RETURN(const openssl::Certificate certificate, Parse(pem));
  return Describe(certificate.get());
}

absl::StatusOr<CertificateInfo> VerifyCertificate(absl::string_view pem, absl::string_view ca_pem,
                                                  CertificateUse use, absl::Time now) {
  ASSIGN_OR_RETURN(const openssl::Certificate certificate, Parse(pem));
  ASSIGN_OR_RETURN(const openssl::Certificate ca, Parse(ca_pem));
  const openssl::Store store(X509_STORE_new());
  const openssl::StoreContext context(X509_STORE_CTX_new());
  X509_STORE_add_cert(store.get(), ca.get());
  X509_STORE_CTX_init(context.get(), store.get(), certificate.get(), nullptr);
  X509_VERIFY_PARAM* rules = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_time(rules, absl::ToTimeT(now));
  X509_VERIFY_PARAM_set_purpose(
      rules, use == CertificateUse::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  CertificateInfo info = Describe(certificate.get());
  if (X509_verify_cert(context.get()) == 1) return info;
  const int error = X509_STORE_CTX_get_error(context.get());
  X509* faulty = X509_STORE_CTX_get_current_cert(context.get());
  ERR_clear_error();
  return Refusal(error, info, Describe(ca.get()), faulty == nullptr ? info : Describe(faulty), use,
                 now);
}

absl::Status CheckServerName(absl::string_view pem, absl::string_view host) {
  ASSIGN_OR_RETURN(const openssl::Certificate certificate, Parse(pem));
  const std::string name(host);
  const int matches = IsIpAddress(host)
                          ? X509_check_ip_asc(certificate.get(), name.c_str(), 0)
                          : X509_check_host(certificate.get(), name.data(), name.size(),
                                            X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, nullptr);
  if (matches == 1) return absl::OkStatus();
  const CertificateInfo info = Describe(certificate.get());
  return absl::UnauthenticatedError(
      absl::StrCat("certificate \"", info.name, "\" does not name ", host, " (it names ",
                   info.addresses.empty() ? "no address" : absl::StrJoin(info.addresses, ", "),
                   "); dial one of those, or issue it again with --address ", host));
}

absl::StatusOr<TlsIdentity> LoadTls(const TlsFiles& files, CertificateUse use, absl::Time now) {
  TlsIdentity identity;
  ASSIGN_OR_RETURN(identity.ca, ReadPemFile(files.ca));
  ASSIGN_OR_RETURN(identity.certificate, ReadPemFile(files.certificate));
  ASSIGN_OR_RETURN(identity.key, ReadPemFile(files.key));
  const absl::StatusOr<openssl::Certificate> ca = Parse(identity.ca);
  if (!ca.ok()) return InFile(files.ca, ca.status());
  const absl::StatusOr<openssl::Certificate> certificate = Parse(identity.certificate);
  if (!certificate.ok()) return InFile(files.certificate, certificate.status());
  absl::StatusOr<CertificateInfo> info =
      VerifyCertificate(identity.certificate, identity.ca, use, now);
  if (!info.ok()) return InFile(files.certificate, info.status());
  RETURN_IF_ERROR(CheckKey(files, certificate->get(), identity.key));
  identity.info = *std::move(info);
  return identity;
}

}  // namespace espalier
