#include "common/rpc/pki.h"

#include <openssl/rand.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/rpc/certificate.h"
#include "common/rpc/openssl.h"

namespace espalier {
namespace {

// Of P-256.
constexpr int kKeyBits = 256;

absl::Status Failed(absl::string_view what) {
  return absl::InternalError(absl::StrCat("cannot ", what, ": ", openssl::TakeError()));
}

absl::Status CheckName(absl::string_view name, absl::string_view extra) {
  const bool fits =
      !name.empty() && name.size() <= 64 && name.front() != '.' && name.front() != '-';
  const bool clean = std::all_of(name.begin(), name.end(), [extra](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || extra.find(c) != extra.npos;
  });
  if (fits && clean) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("name '", name,
                                                 "' must have 1 to 64 letters, digits or any of '",
                                                 extra, "', and begin with neither '.' nor '-'"));
}

absl::Status CheckAddress(absl::string_view address) {
  if (IsIpAddress(address)) return absl::OkStatus();
  const bool clean = std::all_of(address.begin(), address.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.';
  });
  if (clean && !address.empty() && address.size() <= 253) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "address '", address, "' is neither an IP address nor a host name (no port, no brackets)"));
}

absl::StatusOr<openssl::Key> MakeKey() {
  const openssl::KeyContext context(EVP_PKEY_CTX_new_id(EVP_PKEY_EC, nullptr));
  EVP_PKEY* key = nullptr;
  if (context == nullptr || EVP_PKEY_keygen_init(context.get()) != 1 ||
      EVP_PKEY_CTX_set_ec_paramgen_curve_nid(context.get(), NID_X9_62_prime256v1) != 1 ||
      EVP_PKEY_keygen(context.get(), &key) != 1) {
    return Failed("make a key");
  }
  return openssl::Key(key);
}

absl::Status SetSerial(X509* certificate) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return Failed("draw a serial number");
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);  // Positive, fixed length.
  ASN1_STRING* serial = X509_get_serialNumber(certificate);
  return ASN1_STRING_set(serial, bytes, sizeof bytes) == 1 ? absl::OkStatus()
                                                           : Failed("set the serial number");
}

absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const openssl::Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return Failed(absl::StrCat("add '", value, "' to the certificate"));
  }
  return absl::OkStatus();
}

bool SetCommonName(X509_NAME* subject, const std::string& name) {
  return X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                    0) == 1;
}

struct Period {
  absl::Time not_before;
  absl::Time not_after;
};

// A certificate with everything but its extensions and signature.
absl::StatusOr<openssl::Certificate> Begin(const std::string& name, const Period& period,
                                           EVP_PKEY* key) {
  if (period.not_before >= period.not_after) {
    return absl::InvalidArgumentError("the certificate would end before it begins");
  }
  openssl::Certificate certificate(X509_new());
  X509* x = certificate.get();
  RETURN_IF_ERROR(SetSerial(x));
  const bool built =
      X509_set_version(x, 2) == 1 && SetCommonName(X509_get_subject_name(x), name) &&
      ASN1_TIME_set(X509_getm_notBefore(x), absl::ToTimeT(period.not_before)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(x), absl::ToTimeT(period.not_after)) != nullptr &&
      X509_set_pubkey(x, key) == 1;
  if (!built) return Failed("fill in the certificate");
  return certificate;
}

absl::StatusOr<std::string> Sign(X509* certificate, EVP_PKEY* signing_key) {
  if (X509_sign(certificate, signing_key, EVP_sha256()) == 0) return Failed("sign");
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(bio.get(), certificate) != 1) return Failed("write PEM");
  return openssl::BioText(bio.get());
}

absl::StatusOr<std::string> KeyText(EVP_PKEY* key) {
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("write PEM");
  }
  return openssl::BioText(bio.get());
}

absl::StatusOr<PemPair> WithKey(absl::StatusOr<std::string> certificate, EVP_PKEY* key) {
  RETURN_IF_ERROR(certificate.status());
  ASSIGN_OR_RETURN(std::string text, KeyText(key));
  return PemPair{.certificate = *std::move(certificate), .key = std::move(text)};
}

std::string AlternativeNames(const CertificateRequest& request) {
  std::string names = absl::StrCat("URI:espalier:role/", RoleName(request.role));
  for (const std::string& address : request.addresses) {
    absl::StrAppend(&names, IsIpAddress(address) ? ",IP:" : ",DNS:", address);
  }
  return names;
}

absl::Status CheckRequest(const CertificateRequest& request) {
  RETURN_IF_ERROR(CheckName(request.name, "-_."));
  for (const std::string& address : request.addresses) RETURN_IF_ERROR(CheckAddress(address));
  if (request.role == Role::kCoordinator && request.addresses.empty()) {
    return absl::InvalidArgumentError(
        "a coordinator's certificate needs at least one --address: clients compare it with the "
        "address they dial");
  }
  return absl::OkStatus();
}

struct Signer {
  openssl::Certificate certificate;
  openssl::Key key;
};

absl::StatusOr<Signer> LoadSigner(const PemPair& ca) {
  Signer signer{.certificate = openssl::ParseCertificate(ca.certificate),
                .key = openssl::ParseKey(ca.key)};
  if (signer.certificate == nullptr || signer.key == nullptr) {
    return absl::UnauthenticatedError(
        absl::StrCat("the CA's certificate or key is not in PEM form: ", openssl::TakeError()));
  }
  if (X509_check_ca(signer.certificate.get()) != 1) {
    return absl::UnauthenticatedError("the CA's certificate is not that of a CA");
  }
  if (X509_check_private_key(signer.certificate.get(), signer.key.get()) != 1) {
    ERR_clear_error();
    return absl::UnauthenticatedError("the CA's key does not belong to its certificate");
  }
  return signer;
}

absl::StatusOr<std::string> Certify(const PemPair& ca, const CertificateRequest& request,
                                    EVP_PKEY* key) {
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(const Signer signer, LoadSigner(ca));
  ASSIGN_OR_RETURN(const CertificateInfo ca_info, DescribeCertificate(ca.certificate));
  const Period period{.not_before = request.not_before,
                      .not_after = std::min(request.not_after, ca_info.not_after)};
  if (period.not_after <= period.not_before) {
    return absl::UnauthenticatedError(absl::StrCat(
        "the CA \"", ca_info.name, "\" has expired; make a new one with `espalier pki init`"));
  }
  ASSIGN_OR_RETURN(const openssl::Certificate certificate, Begin(request.name, period, key));
  X509* x = certificate.get();
  X509* issuer = signer.certificate.get();
  X509_set_issuer_name(x, X509_get_subject_name(issuer));
  const bool serves = request.role == Role::kCoordinator;
  RETURN_IF_ERROR(AddExtension(x, issuer, NID_basic_constraints, "critical,CA:FALSE"));
  RETURN_IF_ERROR(AddExtension(x, issuer, NID_key_usage, "critical,digitalSignature"));
  RETURN_IF_ERROR(AddExtension(x, issuer, NID_ext_key_usage, serves ? "serverAuth" : "clientAuth"));
  RETURN_IF_ERROR(AddExtension(x, issuer, NID_subject_key_identifier, "hash"));
  RETURN_IF_ERROR(AddExtension(x, issuer, NID_authority_key_identifier, "keyid"));
  RETURN_IF_ERROR(AddExtension(x, issuer, NID_subject_alt_name, AlternativeNames(request)));
  return Sign(x, signer.key.get());
}

// Read, and signed by the key that it is for.
absl::StatusOr<openssl::Key> KeyOf(absl::string_view request_text) {
  const openssl::Bio bio = openssl::ReadOnlyBio(request_text);
  const openssl::Request request(PEM_read_bio_X509_REQ(bio.get(), nullptr, nullptr, nullptr));
  openssl::Key key(request == nullptr ? nullptr : X509_REQ_get_pubkey(request.get()));
  if (key == nullptr || X509_REQ_verify(request.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the signing request is not PKCS #10 in PEM form, signed by its own key: ",
                     openssl::TakeError()));
  }
  if (EVP_PKEY_base_id(key.get()) != EVP_PKEY_EC || EVP_PKEY_bits(key.get()) != kKeyBits) {
    return absl::InvalidArgumentError(
        "the signing request is for a key of another kind; allowed: EC P-256");
  }
  return key;
}

}  // namespace

absl::StatusOr<PemPair> MakeCa(const CaRequest& request) {
  RETURN_IF_ERROR(CheckName(request.name, " -_."));
  ASSIGN_OR_RETURN(const openssl::Key key, MakeKey());
  const Period period{.not_before = request.not_before, .not_after = request.not_after};
  ASSIGN_OR_RETURN(const openssl::Certificate certificate, Begin(request.name, period, key.get()));
  X509* x = certificate.get();
  X509_set_issuer_name(x, X509_get_subject_name(x));
  RETURN_IF_ERROR(AddExtension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  RETURN_IF_ERROR(AddExtension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign"));
  RETURN_IF_ERROR(AddExtension(x, x, NID_subject_key_identifier, "hash"));
  return WithKey(Sign(x, key.get()), key.get());
}

absl::StatusOr<PemPair> IssueCertificate(const PemPair& ca, const CertificateRequest& request) {
  ASSIGN_OR_RETURN(const openssl::Key key, MakeKey());
  return WithKey(Certify(ca, request, key.get()), key.get());
}

absl::Status CheckCa(const PemPair& ca) { return LoadSigner(ca).status(); }

absl::StatusOr<KeyRequest> MakeKeyRequest(const std::string& name) {
  RETURN_IF_ERROR(CheckName(name, "-_."));
  ASSIGN_OR_RETURN(const openssl::Key key, MakeKey());
  const openssl::Request request(X509_REQ_new());
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  if (X509_REQ_set_version(request.get(), 0) != 1 ||
      !SetCommonName(X509_REQ_get_subject_name(request.get()), name) ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0 ||
      PEM_write_bio_X509_REQ(bio.get(), request.get()) != 1) {
    return Failed("make a signing request");
  }
  ASSIGN_OR_RETURN(std::string text, KeyText(key.get()));
  return KeyRequest{.request = openssl::BioText(bio.get()), .key = std::move(text)};
}

absl::StatusOr<std::string> CertifyKeyRequest(const PemPair& ca,
                                              const CertificateRequest& certificate,
                                              absl::string_view request) {
  ASSIGN_OR_RETURN(const openssl::Key key, KeyOf(request));
  return Certify(ca, certificate, key.get());
}

absl::Status WritePair(const std::string& folder, const std::string& name, const PemPair& pair,
                       Overwrite overwrite) {
  std::error_code error;
  if (std::filesystem::create_directories(folder, error)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder ", folder));
  }
  const std::string stem = absl::StrCat(folder, "/", name);
  const std::string certificate = absl::StrCat(stem, ".crt");
  if (overwrite == Overwrite::kNever && access(certificate.c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(certificate, " exists and was left as it is; --force replaces it"));
  }
  RETURN_IF_ERROR(WritePemFile(absl::StrCat(stem, ".key"), pair.key, PemKind::kKey, overwrite));
  absl::Status written =
      WritePemFile(certificate, pair.certificate, PemKind::kCertificate, overwrite);
  if (!written.ok()) unlink(absl::StrCat(stem, ".key").c_str());
  return written;
}

absl::StatusOr<PemPair> ReadCa(const std::string& folder) {
  PemPair ca;
  for (auto [part, suffix] : {std::pair{&ca.certificate, "/ca.crt"}, {&ca.key, "/ca.key"}}) {
    absl::StatusOr<std::string> text = ReadPemFile(absl::StrCat(folder, suffix));
    if (!text.ok()) {
      return absl::UnauthenticatedError(
          absl::StrCat(text.status().message(), "; make a CA first with `espalier pki init --dir ",
                       folder, "`"));
    }
    *part = *std::move(text);
  }
  return ca;
}

}  // namespace espalier
