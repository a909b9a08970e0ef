#include "tests/worker/mac/mac_rules.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/tensor/torch.h"

namespace espalier {
namespace {

using torch::Tensor;

struct Call {
  const std::string& name;
  const std::vector<Tensor>& tensors;  // its arguments, those in lists too, on the device
  // Of a product, its left and right side, and what it is written to; else undefined.
  Tensor left, right, place;
  bool all = true;  // results are wanted: the first of an output mask
};

bool AnyOf(const std::vector<Tensor>& tensors, const std::function<bool(const Tensor&)>& is) {
  return std::any_of(tensors.begin(), tensors.end(), is);
}

bool IsBroadcast(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) return true;
  }
  return false;
}

// Where other tensors say; in place, or not.
bool WritesAtPlaces(const std::string& name) {
  static const char* const kNames[] = {"index_add", "index_copy", "index_put", "scatter"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&name](const char* begin) { return name.rfind(begin, 0) == 0; });
}

constexpr int64_t kMostInner = 16384;
constexpr int64_t kMostBytes = int64_t{1} << 32;
constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;

struct Rule {
  const char* text;  // of people; the issues are pytorch/pytorch's
  bool (*broken)(const Call&);
};

const Rule kRules[] = {
    {"no float64: Metal has none (#122602, #193545)",
     [](const Call& call) {
       return AnyOf(call.tensors,
                    [](const Tensor& t) { return t.scalar_type() == torch::kDouble; });
     }},
    {"no complex numbers: they are there in part only",
     [](const Call& call) {
       return AnyOf(call.tensors, [](const Tensor& t) { return t.is_complex(); });
     }},
    {"a common dimension of at most 16,384 in a product: from 32,767 on it is wrong on M1 and M2, "
     "of "
     "matrices before LibTorch 2.14, of batches still (#177116, #195163, #183535)",
     [](const Call& call) {
       return call.left.defined() && call.left.dim() > 0 && call.left.size(-1) > kMostInner;
     }},
    {"a dense left side of a product: a transposed view was wrong from 2.7 to 2.13 (#193487)",
     [](const Call& call) { return call.left.defined() && !call.left.is_contiguous(); }},
    {"no broadcast operand in a product: wrong on macOS 15 to 26.2, and 27 (#180201)",
     [](const Call& call) { return IsBroadcast(call.left) || IsBroadcast(call.right); }},
    {"operands of less than 4 GiB: more ends the process (#149261, #149325)",
     [](const Call& call) {
       return AnyOf(call.tensors,
                    [](const Tensor& t) { return static_cast<int64_t>(t.nbytes()) >= kMostBytes; });
     }},
    {"no view of memory of 2^31 elements or more: refused on macOS 15, copied before",
     [](const Call& call) {
       return AnyOf(call.tensors, [](const Tensor& t) {
         const auto behind = static_cast<int64_t>(t.storage().nbytes() / t.element_size());
         return !t.is_contiguous() && behind > kMostElements;
       });
     }},
    {"contiguous operands of addcmul and addcdiv: wrong else before 2.4 (#118115)",
     [](const Call& call) {
       return (call.name.rfind("addcmul", 0) == 0 || call.name.rfind("addcdiv", 0) == 0) &&
              AnyOf(call.tensors, [](const Tensor& t) { return !t.is_contiguous(); });
     }},
    {"no shift or product of 64-bit numbers, of which Metal's kernels are not proven",
     [](const Call& call) {
       const bool shifts = call.name.find("shift") != std::string::npos;
       return (shifts || call.name == "mul" || call.name == "mul_") &&
              AnyOf(call.tensors, [](const Tensor& t) { return t.scalar_type() == torch::kLong; });
     }},
    {"matrices for linear: rows of more dimensions are slow, or wrong in 16 bits on M5 (#180776, "
     "#181936, #189847)",
     [](const Call& call) {
       return call.name == "linear" && call.left.defined() && call.left.dim() != 2;
     }},
    {"no bias in linear of one row, which drops it on M1 (#188438), nor of more than 65,536 "
     "(#189495)",
     [](const Call& call) {
       const bool biased = call.name == "linear" && call.left.defined() && call.tensors.size() > 2;
       const int64_t rows = biased ? call.left.numel() / call.left.size(-1) : 2;
       return rows < 2 || rows > 65536;
     }},
    {"a contiguous place for a product: views may be written wrongly (#104832)",
     [](const Call& call) { return call.place.defined() && !call.place.is_contiguous(); }},
    {"dense operands where places are written that others name: index_add of a transposed view "
     "does "
     "nothing on macOS 14 (#176159), scatter reads views as they lie (#175191)",
     [](const Call& call) {
       return WritesAtPlaces(call.name) &&
              AnyOf(call.tensors, [](const Tensor& t) { return !t.is_contiguous(); });
     }},
    {"all gradients of a norm, or none of its input is right (#183825)",
     [](const Call& call) { return call.name == "native_layer_norm_backward" && !call.all; }},
};

struct Copying {
  const Tensor& from;
  const Tensor& to;
  bool non_blocking;
  bool up;  // to the device
};

int64_t OffsetInBytes(const Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

struct CopyRule {
  const char* text;
  bool (*broken)(const Copying&);
};

const CopyRule kCopyRules[] = {
    {"a copy to the host of what is dense as it lies or strided on one side alone: equal strides "
     "of "
     "views are taken for dense in 2.13 (#189961)",
     [](const Copying& copy) {
       return !copy.up && !copy.from.is_contiguous() && copy.from.strides() == copy.to.strides();
     }},
    {"no copy to the host in another type that is not wider: it may overwrite what is copied "
     "(#189563)",
     [](const Copying& copy) {
       return !copy.up && copy.from.scalar_type() != copy.to.scalar_type() &&
              copy.to.element_size() <= copy.from.element_size();
     }},
    {"a copy to the host that nobody waits for is of contiguous tensors of one type: else LibTorch "
     "copies its result on the host before there is one",
     [](const Copying& copy) {
       return !copy.up && copy.non_blocking &&
              !(copy.from.scalar_type() == copy.to.scalar_type() && copy.from.is_contiguous() &&
                copy.to.is_contiguous());
     }},
    {"places in memory that 4 divides: blits have no others (LibTorch's 'Unaligned blit request')",
     [](const Copying& copy) {
       const Tensor& host = copy.up ? copy.from : copy.to;
       return host.is_contiguous() && (reinterpret_cast<uintptr_t>(host.data_ptr()) % 4 != 0 ||
                                       OffsetInBytes(copy.up ? copy.to : copy.from) % 4 != 0);
     }},
};

std::string Shape(const Tensor& tensor) {
  return absl::StrCat(torch::toString(tensor.scalar_type()), "[",
                      absl::StrJoin(tensor.sizes(), "x"), "]");
}

}  // namespace

const std::vector<std::string>& MpsKernels() {
  static const std::vector<std::string>* const kernels = [] {
    auto* names = new std::vector<std::string>;
    std::ifstream file(ESPALIER_MPS_KERNELS_FILE);
    for (std::string line; std::getline(file, line);) {
      if (!line.empty() && line[0] != '#') names->push_back(line);
    }
    return names;
  }();
  return *kernels;
}

bool IsProduct(std::string name) {
  if (!name.empty() && name.back() == '_') name.pop_back();
  static const std::set<std::string> names = {"mm",     "bmm",    "addmm", "baddbmm", "addbmm",
                                              "matmul", "linear", "addmv", "mv",      "dot"};
  return names.count(name) > 0;
}

bool Allocates(const std::string& name) {
  static const std::set<std::string> names = {"empty", "empty_strided", "permute", "resize_",
                                              "set_"};
  return names.count(name) > 0;
}

std::vector<std::string> AgainstRulesOfCopies(const Tensor& from, const Tensor& to,
                                              bool non_blocking) {
  const auto on_mac = [](const Tensor& tensor) {
    return tensor.device().type() == c10::DeviceType::PrivateUse1;
  };
  if (on_mac(from) == on_mac(to)) return {};
  std::vector<std::string> against;
  for (const CopyRule& rule : kCopyRules) {
    if (!rule.broken({from, to, non_blocking, on_mac(to)})) continue;
    against.push_back(absl::StrCat("a copy of ", Shape(from), " at ", OffsetInBytes(from), " to ",
                                   Shape(to), " at ", OffsetInBytes(to),
                                   " is against: ", rule.text));
  }
  return against;
}

std::vector<std::string> AgainstRules(const std::string& name, const c10::FunctionSchema& schema,
                                      const std::vector<c10::IValue>& arguments) {
  std::vector<Tensor> tensors;
  std::vector<Tensor> sides;  // of a product, in order, without what it is added to
  Tensor place;
  bool all = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = schema.arguments()[i].name();
    std::vector<Tensor> here;
    if (arguments[i].isTensor()) here.push_back(arguments[i].toTensor());
    if (arguments[i].isTensorList()) here = arguments[i].toTensorVector();
    if (argument == "output_mask") all = arguments[i].toBoolList()[0];
    for (const Tensor& tensor : here) {
      if (!tensor.defined() || tensor.device().type() != c10::DeviceType::PrivateUse1) continue;
      tensors.push_back(tensor);
      const bool added = argument == "out" || argument == "bias" ||
                         (argument == "self" && name.find("add") != std::string::npos);
      if (!added) sides.push_back(tensor);
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && tensor.numel() > 0) place = tensor;
    }
  }
  Call call{name, tensors, {}, {}, {}, all};
  if (IsProduct(name) && sides.size() >= 2) {
    call.left = sides[0];
    call.right = sides[1];
    call.place = place;
  }
  std::vector<std::string> against;
  for (const Rule& rule : kRules) {
    if (!rule.broken(call)) continue;
    std::vector<std::string> shapes;
    for (const Tensor& tensor : tensors) shapes.push_back(Shape(tensor));
    against.push_back(
        absl::StrCat(name, "(", absl::StrJoin(shapes, ", "), ") is against: ", rule.text));
  }
  return against;
}

}  // namespace espalier
