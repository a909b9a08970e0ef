#include "worker/reward/unit_conversion.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr double kAnswerMin = 0.01, kAnswerMax = 1e9;
constexpr int64_t kQuantityMax = 1000000;

struct Unit {
  std::string name;
  double size;  // in the first unit of its family
};
struct Family {
  std::string name;
  std::vector<Unit> units;
};

// US customary measures; k, M, G and T are powers of 1000, Ki, Mi and Gi of 1024.
const std::vector<Family>& Families() {
  static const std::vector<Family>& families =
      *new std::vector<Family>{{"length",
                                {{"m", 1},
                                 {"mm", 0.001},
                                 {"cm", 0.01},
                                 {"km", 1000},
                                 {"inch", 0.0254},
                                 {"foot", 0.3048},
                                 {"yard", 0.9144},
                                 {"mile", 1609.344}}},
                               {"mass",
                                {{"gram", 1},
                                 {"mg", 0.001},
                                 {"kg", 1000},
                                 {"ton", 1e6},
                                 {"ounce", 28.349523125},
                                 {"pound", 453.59237}}},
                               {"time",
                                {{"second", 1},
                                 {"ms", 0.001},
                                 {"minute", 60},
                                 {"hour", 3600},
                                 {"day", 86400},
                                 {"week", 604800},
                                 {"year of 365 days", 31536000}}},
                               {"speed",
                                {{"m/s", 1},
                                 {"km/h", 1 / 3.6},
                                 {"mph", 0.44704},
                                 {"knot", 1852.0 / 3600},
                                 {"ft/s", 0.3048}}},
                               {"volume",
                                {{"liter", 1},
                                 {"ml", 0.001},
                                 {"cubic meter", 1000},
                                 {"cup", 0.2365882365},
                                 {"pint", 0.473176473},
                                 {"quart", 0.946352946},
                                 {"gallon", 3.785411784}}},
                               {"data",
                                {{"byte", 1},
                                 {"bit", 0.125},
                                 {"kB", 1e3},
                                 {"MB", 1e6},
                                 {"GB", 1e9},
                                 {"TB", 1e12},
                                 {"KiB", 1024},
                                 {"MiB", 1048576},
                                 {"GiB", 1073741824}}}};
  return families;
}

constexpr absl::string_view kWordings[] = {
    "How many $to are there per $n $from?", "Convert $n $from to $to.",
    "How much is $n $from in $to?", "Express $n $from in $to.", "$n $from equals how many $to?"};

struct Place {
  const Family* family = nullptr;
  const Unit* unit = nullptr;
};

absl::StatusOr<Place> FindUnit(absl::string_view name) {
  std::vector<std::string> known;
  for (const Family& family : Families()) {
    for (const Unit& unit : family.units) {
      if (unit.name == name) return Place{.family = &family, .unit = &unit};
      known.push_back(unit.name);
    }
  }
  return absl::NotFoundError(
      absl::StrCat("there is no unit '", name, "'; known: ", absl::StrJoin(known, ", ")));
}

const Family& DrawFamily(const UnitQuestionOptions& options, SplitMix64& random) {
  const std::vector<Family>& all = Families();
  if (options.families.empty()) return all[random.Below(all.size())];
  const std::string& name = options.families[random.Below(options.families.size())];
  return *std::find_if(all.begin(), all.end(),
                       [&](const Family& family) { return family.name == name; });
}

std::string KeyOf(double quantity, const Unit& from, const Unit& to) {
  return absl::StrCat(SpellNumber(quantity), " ", from.name, " in ", to.name);
}

// "1 kg is 1000 gram, so 6 kg are 6 * 1000 = 6000 gram: <answer>6000</answer>".
std::string Solve(double quantity, const Unit& from, const Unit& to) {
  const bool larger = from.size >= to.size;
  const double ratio = larger ? from.size / to.size : to.size / from.size;
  const std::string n = SpellNumber(quantity);
  const std::string answer = SpellNumber(quantity * from.size / to.size);
  return absl::StrCat("1 ", larger ? from.name : to.name, " is ", SpellNumber(ratio), " ",
                      larger ? to.name : from.name, ", so ", n, " ", from.name, " are ", n,
                      larger ? " * " : " / ", SpellNumber(ratio), " = ", answer, " ", to.name,
                      ": <answer>", answer, "</answer>");
}

}  // namespace

absl::Status CheckUnitOptions(const UnitQuestionOptions& options) {
  if (options.most < 1 || options.most > kQuantityMax) {
    return absl::InvalidArgumentError(absl::StrCat("quantities of 1 to ", options.most,
                                                   " are asked for; allowed: 1 to ", kQuantityMax));
  }
  std::vector<std::string> known;
  for (const Family& family : Families()) known.push_back(family.name);
  for (const std::string& name : options.families) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("there are no units of '", name, "'; known: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> UnitRatio(absl::string_view from, absl::string_view to) {
  ASSIGN_OR_RETURN(const Place a, FindUnit(from));
  ASSIGN_OR_RETURN(const Place b, FindUnit(to));
  if (a.family == b.family) return a.unit->size / b.unit->size;
  return absl::InvalidArgumentError(absl::StrCat(from, " is of ", a.family->name, " and ", to,
                                                 " of ", b.family->name,
                                                 "; neither is so much of the other"));
}

Question AskConversion(const UnitQuestionOptions& options, SplitMix64& random) {
  for (;;) {
    const Family& family = DrawFamily(options, random);
    const Unit& from = family.units[random.Below(family.units.size())];
    const Unit& to = family.units[random.Below(family.units.size())];
    double quantity = 1 + static_cast<double>(random.Below(static_cast<uint64_t>(options.most)));
    if (random.Below(8) == 0) quantity -= 0.5;
    const absl::string_view wording = kWordings[random.Below(std::size(kWordings))];
    const double answer = quantity * from.size / to.size;
    if (&from == &to || answer < kAnswerMin || answer > kAnswerMax) continue;
    const std::string n = SpellNumber(quantity);
    return {
        .key = KeyOf(quantity, from, to),
        .text = absl::StrReplaceAll(wording, {{"$n", n}, {"$from", from.name}, {"$to", to.name}}),
        .answer = SpellNumber(answer),
        .solution = Solve(quantity, from, to)};
  }
}

std::vector<WorkedExample> UnitExamples() {
  std::vector<WorkedExample> examples;
  for (const auto& [n, from, to] :
       {std::tuple(3.0, "km", "m"), std::tuple(45.0, "minute", "hour")}) {
    const Unit &a = *FindUnit(from)->unit, &b = *FindUnit(to)->unit;
    examples.push_back({.question = absl::StrCat("How many ", to, " are there per ", SpellNumber(n),
                                                 " ", from, "?"),
                        .solution = Solve(n, a, b),
                        .key = KeyOf(n, a, b)});
  }
  return examples;
}

}  // namespace espalier
