#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/reward/data_writer.h"
#include "worker/reward/prompts.h"
#include "worker/reward/question_data.h"
#include "worker/reward/sudoku.h"
#include "worker/reward/word_list.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

constexpr char kMakeAbout[] =
    "Make data to learn from: examples for fine-tuning, and prompts whose completions a verifier "
    "judges.\n"
    "Examples:\n"
    "  espalier data make wordle --output build/wordle --words configs/data/wordle-words.txt\n"
    "  espalier data make units --output build/units --train 1000 --validation 100\n"
    "  espalier data make arithmetic --output build/sums --terms 3 --operations +-\n"
    "  espalier data make sudoku --output build/sudoku --size 4";
constexpr char kWordleAbout[] =
    "Games of Wordle, played by a teacher that sees what a player sees.";
constexpr char kUnitsAbout[] = "How much a quantity is in another unit, with worked solutions.";
constexpr char kSudokuAbout[] = "Puzzles of one solution, for tiny recursive models.";
constexpr char kArithmeticAbout[] = "Expressions of whole numbers, worked out step by step.";

CLI::App& AddKind(CLI::App& make, const std::string& kind, const char* about,
                  MakeDataCommand& command) {
  CLI::App& app = *make.add_subcommand(kind, about);
  app.callback([&command, kind] { command.kind = kind; });
  app.add_option("--output", command.output, "Folder to be made")->required();
  const char* what = kind == "wordle" ? "Games" : kind == "sudoku" ? "Puzzles" : "Questions";
  app.add_option("--train", command.amount.train, absl::StrCat(what, " to train on"))
      ->capture_default_str();
  app.add_option("--validation", command.amount.validation,
                 absl::StrCat(what, " held out, that have nothing in common with those"))
      ->capture_default_str();
  app.add_option("--seed", command.amount.seed, "The same seed and options give the same files")
      ->capture_default_str();
  if (kind == "sudoku") return app;
  app.add_option(
      "--form", command.form,
      "Of prompts: plain, chat (ChatML with instructions), or of wordle guess (such a chat "
      "that asks for the word alone); default: chat of wordle, plain of others");
  return app;
}

std::string SpellWords(absl::Span<const WordleWord> words) {
  return absl::StrCat(
      absl::StrJoin(words, "\n",
                    [](std::string* out, WordleWord word) { absl::StrAppend(out, word.text()); }),
      "\n");
}

absl::Status MakeWordle(const MakeDataCommand& command, PromptForm form, DataWriter& writer) {
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, Vocabulary::Load(command.words, command.secrets));
  absl::PrintF("%d words, %d of them secrets\n", vocabulary.guesses.words().size(),
               vocabulary.secrets.words().size());
  const int64_t left_out = vocabulary.guesses.left_out() + vocabulary.secrets.left_out();
  if (left_out > 0) absl::PrintF("%d lines that are no word of five letters left out\n", left_out);
  ASSIGN_OR_RETURN(const WordleHoldOut hold_out, ParseWordleHoldOut(command.hold_out));
  RETURN_IF_ERROR(MakeWordleData(vocabulary,
                                 {.amount = command.amount,
                                  .teacher = command.teacher,
                                  .erring = command.erring,
                                  .hold_out = hold_out,
                                  .form = form},
                                 writer));
  RETURN_IF_ERROR(writer.AddFile("words.txt", SpellWords(vocabulary.guesses.words())));
  return writer.AddFile("secrets.txt", SpellWords(vocabulary.secrets.words()));
}

absl::Status MakeUnits(const MakeDataCommand& command, PromptForm form, DataWriter& writer) {
  RETURN_IF_ERROR(CheckUnitOptions(command.units));
  return MakeQuestionData([&](SplitMix64& random) { return AskConversion(command.units, random); },
                          UnitExamples(), {.amount = command.amount, .form = form},
                          "allow larger quantities (--most)", writer);
}

absl::Status MakeArithmetic(const MakeDataCommand& command, PromptForm form, DataWriter& writer) {
  RETURN_IF_ERROR(CheckArithmetic(command.arithmetic));
  return MakeQuestionData(
      [&](SplitMix64& random) { return AskArithmetic(command.arithmetic, random); },
      ArithmeticExamples(), {.amount = command.amount, .form = form},
      "allow more (--digits, --terms, --operations)", writer);
}

absl::Status MakeSudoku(const MakeDataCommand& command, DataWriter& writer) {
  RETURN_IF_ERROR(CheckSudoku(command.sudoku));
  return MakeSudokuData(command.sudoku, command.amount, writer);
}

}  // namespace

void AddMakeData(CLI::App& data, MakeDataCommand& command) {
  CLI::App& make = *data.add_subcommand("make", kMakeAbout);
  make.require_subcommand(1);
  CLI::App& wordle = AddKind(make, "wordle", kWordleAbout, command);
  wordle
      .add_option("--words", command.words,
                  "Words that may be guessed: one a line, or a CSV with a column Word")
      ->required();
  wordle.add_option("--secrets", command.secrets, "Words that a secret may be; default: all");
  wordle
      .add_option("--considered", command.teacher.considered,
                  "Words among which the teacher takes the one that tells most; 1: any that agrees")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  wordle
      .add_option(
          "--erring", command.erring,
          "Above 0: prompts are positions of players of whose guesses this part is any secret, as "
          "a learner gets into them; 0: positions of the teacher's games")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  wordle
      .add_option(
          "--hold-out", command.hold_out,
          "What games for validation do not have in common with those to train on: secrets, "
          "or positions alone, whose secrets are met in training too")
      ->capture_default_str();
  CLI::App& units = AddKind(make, "units", kUnitsAbout, command);
  units
      .add_option("--family", command.units.families,
                  "length, mass, time, speed, volume or data; may be repeated; default: all")
      ->type_size(1)
      ->allow_extra_args(false);
  units.add_option("--most", command.units.most, "Largest quantity")->capture_default_str();
  CLI::App& sums = AddKind(make, "arithmetic", kArithmeticAbout, command);
  ArithmeticOptions& o = command.arithmetic;
  sums.add_option("--terms", o.terms, "Numbers in an expression")->capture_default_str();
  sums.add_option("--digits", o.digits, "Digits of a number at most")->capture_default_str();
  sums.add_option("--operations", o.operations, "Those of +-*/ (divisions leave no rest)")
      ->capture_default_str();
  sums.add_flag("--parentheses", o.parentheses, "Expressions of any shape");
  CLI::App& sudoku = AddKind(make, "sudoku", kSudokuAbout, command);
  sudoku.add_option("--size", command.sudoku.size, "Digits, and places of a row: 4, 6, 8 or 9")
      ->capture_default_str();
  sudoku
      .add_option("--clues", command.sudoku.clues,
                  "Places that are given, where so few leave one solution; 0: three in eight")
      ->capture_default_str();
}

absl::Status RunMakeData(const MakeDataCommand& command) {
  const bool wordle = command.kind == "wordle";
  const std::string form_name = command.form.empty() ? (wordle ? "chat" : "plain") : command.form;
  ASSIGN_OR_RETURN(const PromptForm form, ParsePromptForm(form_name));
  if (form == PromptForm::kGuess && !wordle) {
    return absl::InvalidArgumentError(absl::StrCat("--form guess is of wordle, and the data are ",
                                                   command.kind, "; allowed: plain, chat"));
  }
  ASSIGN_OR_RETURN(DataWriter writer, DataWriter::Create(PosixFileSystem(), command.output));
  if (wordle) {
    RETURN_IF_ERROR(MakeWordle(command, form, writer));
  } else if (command.kind == "sudoku") {
    RETURN_IF_ERROR(MakeSudoku(command, writer));
  } else if (command.kind == "units") {
    RETURN_IF_ERROR(MakeUnits(command, form, writer));
  } else {
    RETURN_IF_ERROR(MakeArithmetic(command, form, writer));
  }
  RETURN_IF_ERROR(writer.Finish());
  absl::PrintF("%s:\n", command.output);
  for (const auto& [name, rows] : writer.Rows()) {
    absl::PrintF("  %-24s  %d rows\n", name, rows);
  }
  return absl::OkStatus();
}

}  // namespace espalier
