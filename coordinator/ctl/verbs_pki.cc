// pki init, issue, show: certificates for clusters that reach beyond loopback.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/certificate.h"
#include "common/rpc/pki.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/render.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

// Certificates begin a little in the past, so that clocks may differ by as much.
constexpr absl::Duration kClockTolerance = absl::Minutes(10);

struct Options {
  std::string folder = "pki";
  std::string name;
  std::string role;
  std::vector<std::string> addresses;
  int days = 365;
  bool force = false;

  Overwrite overwrite() const { return force ? Overwrite::kWhenPresent : Overwrite::kNever; }
};

void AddPairOptions(CLI::App* verb, Options& options) {
  verb->add_option("--dir", options.folder, "Folder of the CA and the certificates")
      ->capture_default_str()
      ->type_name("DIR");
  verb->add_option("--days", options.days, "How long it is valid")
      ->capture_default_str()
      ->check(CLI::Range(1, 36500))
      ->type_name("DAYS");
  verb->add_flag("--force", options.force, "Replace files that are there");
}

// Says which files there are now.
absl::StatusOr<ExitCode> Report(Context& context, const Options& options, const std::string& name) {
  const std::string stem = absl::StrCat(options.folder, "/", name);
  const std::string certificate = stem + ".crt", key = stem + ".key";
  if (context.options.json()) {
    context.terminal.Out(
        JsonText(nlohmann::ordered_json{{"certificate", certificate}, {"key", key}}));
    return kDone;
  }
  context.terminal.Out(
      absl::StrCat("certificate  ", certificate, "\nkey          ", key, "   (keep it secret)\n"));
  return kDone;
}

absl::StatusOr<ExitCode> Init(Context& context, const Options& options) {
  const absl::Time now = context.clock.Now();
  ASSIGN_OR_RETURN(const PemPair pair, MakeCa({.name = options.name,
                                               .not_before = now - kClockTolerance,
                                               .not_after = now + absl::Hours(24) * options.days}));
  RETURN_IF_ERROR(WritePair(options.folder, "ca", pair, options.overwrite()));
  return Report(context, options, "ca");
}

absl::StatusOr<ExitCode> Issue(Context& context, const Options& options) {
  if (options.name == "ca") {
    return absl::InvalidArgumentError("the name 'ca' is the CA's own; choose another");
  }
  ASSIGN_OR_RETURN(const Role role, ParseRole(options.role));
  ASSIGN_OR_RETURN(const PemPair ca, ReadCa(options.folder));
  const absl::Time now = context.clock.Now();
  ASSIGN_OR_RETURN(const PemPair pair,
                   IssueCertificate(ca, {.name = options.name,
                                         .role = role,
                                         .addresses = options.addresses,
                                         .not_before = now - kClockTolerance,
                                         .not_after = now + absl::Hours(24) * options.days}));
  RETURN_IF_ERROR(WritePair(options.folder, options.name, pair, options.overwrite()));
  return Report(context, options, options.name);
}

nlohmann::ordered_json CertificateJson(const NamedCertificate& certificate) {
  const CertificateInfo& info = certificate.info;
  nlohmann::ordered_json json{{"path", certificate.path},
                              {"name", info.name},
                              {"issuer", info.issuer},
                              {"is_ca", info.is_ca},
                              {"not_before_ms", absl::ToUnixMillis(info.not_before)},
                              {"not_after_ms", absl::ToUnixMillis(info.not_after)},
                              {"addresses", info.addresses},
                              {"serial", info.serial},
                              {"fingerprint", info.fingerprint}};
  if (info.role.has_value()) json["role"] = std::string(RoleName(*info.role));
  return json;
}

absl::StatusOr<ExitCode> ShowFiles(Context& context, const std::vector<std::string>& files) {
  std::vector<NamedCertificate> certificates;
  for (const std::string& path : files) {
    const absl::StatusOr<std::string> pem = ReadPemFile(path);
    if (!pem.ok()) return absl::NotFoundError(pem.status().message());
    absl::StatusOr<CertificateInfo> info = DescribeCertificate(*pem);
    if (!info.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", info.status().message()));
    }
    certificates.push_back({.path = path, .info = *std::move(info)});
  }
  if (context.options.json()) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const NamedCertificate& certificate : certificates) {
      list.push_back(CertificateJson(certificate));
    }
    context.terminal.Out(JsonText(nlohmann::ordered_json{{"certificates", std::move(list)}}));
    return kDone;
  }
  context.terminal.Out(RenderCertificates(certificates, context.terminal.view(context.clock)));
  return kDone;
}

void AddInit(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  options->name = "Espalier CA";
  options->days = 3650;
  CLI::App* verb = AddVerb(verbs.app, "init", "Make a certificate authority",
                           "espalier pki init --dir pki --name \"Lab CA\"");
  AddPairOptions(verb, *options);
  verb->add_option("--name", options->name, "Name of the CA, shown in messages")
      ->capture_default_str()
      ->type_name("NAME");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) { return Init(context, *options); };
  });
}

void AddIssue(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddVerb(verbs.app, "issue", "Issue a certificate with a role",
                           "espalier pki issue coordinator --role coordinator --address 10.77.0.1\n"
                           "espalier pki issue studio --role worker\n"
                           "espalier pki issue ann --role operator --days 90");
  verb->add_option("NAME", options->name, "Whose it is; also the name of its files")->required();
  verb->add_option("--role", options->role,
                   "operator (changes jobs), viewer (reads), worker (a node), trainer (a node on "
                   "which people start mpirun by hand), coordinator (espalierd)")
      ->required()
      ->type_name("ROLE");
  verb->add_option("--address", options->addresses,
                   "IP address or host name under which it serves; may be repeated")
      ->expected(1)
      ->take_all()
      ->type_name("ADDRESS");
  AddPairOptions(verb, *options);
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) { return Issue(context, *options); };
  });
}

void AddShow(VerbTable verbs) {
  auto files = std::make_shared<std::vector<std::string>>();
  CLI::App* verb = AddVerb(verbs.app, "show", "Show what certificates say",
                           "espalier pki show pki/ca.crt pki/ann.crt");
  verb->add_option("FILE", *files, "Certificates in PEM form")->required();
  verb->callback([verbs, files] {
    verbs.chosen = [files](Context& context) { return ShowFiles(context, *files); };
  });
}

}  // namespace

void AddPkiVerbs(VerbTable verbs) {
  CLI::App* pki = AddVerb(verbs.app, "pki", "Make and show certificates",
                          "espalier pki init\n"
                          "espalier pki issue coordinator --role coordinator --address 10.77.0.1\n"
                          "espalier pki issue studio --role worker");
  pki->require_subcommand(1);
  AddInit({*pki, verbs.chosen});
  AddIssue({*pki, verbs.chosen});
  AddShow({*pki, verbs.chosen});
}

}  // namespace espalier::ctl
