#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/chat/value.h"

namespace espalier {
namespace {

constexpr int64_t kIndentMax = 16;

std::string RealText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return nlohmann::json(value).dump();
}

std::string QuotedText(absl::string_view text) {
  const bool single = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = single ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += absl::StrFormat("\\x%02x", static_cast<int>(c));
    } else {
      if (c == quote || c == '\\') out += '\\';
      out += c;
    }
  }
  out += quote;
  return out;
}

std::string JsonText(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class JsonWriter {
 public:
  explicit JsonWriter(std::optional<int64_t> indent) : indent_(indent) {}

  absl::Status Write(const Value& value, int64_t level) {
    RETURN_IF_ERROR(CheckTextSize(out_.size()));  // indents are no part of the value's size
    if (const Value::List* list = value.list()) {
      return WriteItems('[', ']', list->size(), level,
                        [&](size_t i) { return Write((*list)[i], level + 1); });
    }
    if (const Value::Dict* dict = value.dict()) {
      return WriteItems('{', '}', dict->size(), level, [&](size_t i) {
        absl::StrAppend(&out_, JsonText((*dict)[i].first), ": ");
        return Write((*dict)[i].second, level + 1);
      });
    }
    if (value.is_undefined() || value.call() != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson is given what JSON does not have: ", value.KindName()));
    }
    if (const std::string* text = value.text()) {
      out_ += JsonText(*text);
    } else if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.IsTrue() ? "true" : "false";
    } else {
      out_ += value.is_real() ? RealText(value.real()) : absl::StrCat(value.integer());
    }
    return absl::OkStatus();
  }

  std::string Take() { return std::move(out_); }

 private:
  template <typename WriteItem>
  absl::Status WriteItems(char open, char close, size_t size, int64_t level, WriteItem write) {
    out_ += open;
    for (size_t i = 0; i < size; ++i) {
      if (i > 0) out_ += indent_ ? "," : ", ";
      NewLine(level + 1);
      RETURN_IF_ERROR(write(i));
    }
    if (size > 0) NewLine(level);
    out_ += close;
    return absl::OkStatus();
  }

  void NewLine(int64_t level) {
    if (!indent_) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(*indent_ * level), ' ');
  }

  const std::optional<int64_t> indent_;
  std::string out_;
};

std::string ReprOfOne(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.IsTrue() ? "True" : "False";
  if (value.is_integer()) return absl::StrCat(value.integer());
  if (value.is_real()) return RealText(value.real());
  if (const std::string* text = value.text()) return QuotedText(*text);
  return value.is_namespace() ? "<Namespace>" : "<function>";
}

void AppendRepr(const Value& value, std::string& out) {
  if (const Value::List* list = value.list()) {
    out += '[';
    for (const Value& item : *list) {
      if (&item != list->data()) out += ", ";
      AppendRepr(item, out);
    }
    out += ']';
  } else if (value.dict() != nullptr && !value.is_namespace()) {
    out += '{';
    for (const auto& member : *value.dict()) {
      if (&member != value.dict()->data()) out += ", ";
      out += QuotedText(member.first) + ": ";
      AppendRepr(member.second, out);
    }
    out += '}';
  } else {
    out += ReprOfOne(value);
  }
}

}  // namespace

std::string PythonRepr(const Value& value) {
  std::string out;
  AppendRepr(value, out);
  return out;
}

absl::StatusOr<std::string> PythonJson(const Value& value, std::optional<int64_t> indent) {
  if (indent) indent = std::clamp<int64_t>(*indent, 0, kIndentMax);
  JsonWriter writer(indent);
  RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace espalier
