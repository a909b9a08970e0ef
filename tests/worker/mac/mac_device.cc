#include "tests/worker/mac/mac_device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/worker/mac/mac_queue.h"
#include "tests/worker/mac/mac_rules.h"
#include "tests/worker/mac/mac_shapes.h"

namespace espalier {
namespace {

using c10::IValue;
using torch::Tensor;

constexpr auto kKey = c10::DispatchKey::PrivateUse1;
constexpr auto kType = c10::DeviceType::PrivateUse1;

MacQueue queue;

// One queue, in which everything is done at once but copies that nobody waits for.
struct MacGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return {kType, 0}; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return Queue(); }
  c10::Stream getDefaultStream(c10::Device) const override { return Queue(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return Queue(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(static_cast<intptr_t>(queue.Mark()));
  }
  bool queryEvent(void* event) const override {
    return queue.Reached(static_cast<int64_t>(reinterpret_cast<intptr_t>(event)));
  }
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 5)
  void synchronizeEvent(void* event) const override {
    while (!queryEvent(event)) {
    }
  }
#endif
  static c10::Stream Queue() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, 0)); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, MacGuard);

std::mutex mutex;
MacDevice::Tally tally;  // under the mutex
int64_t lost = 0;        // launches to come that have no effect; under the mutex
MacDevice::Mode mode;    // of the device that lives
bool shapes_only() { return mode == MacDevice::Mode::kShapesOnly; }

bool OnMac(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// The same memory as the processor sees it; of shapes only, a tensor without memory.
Tensor HostAlias(const Tensor& tensor) {
  if (!OnMac(tensor)) return tensor;
  if (shapes_only()) {
    return torch::empty_strided(tensor.sizes(), tensor.strides(),
                                tensor.options().device(torch::kMeta).requires_grad(false));
  }
  auto* keep = new Tensor(tensor.detach());
  return torch::from_blob(
      static_cast<char*>(tensor.storage().data_ptr().get()) +
          tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()),
      tensor.sizes(), tensor.strides(), [keep](void*) { delete keep; },
      torch::TensorOptions().dtype(tensor.dtype()).device(torch::kCPU));
}

// A tensor of the device that owns the memory of one of the host.
Tensor ToMac(const Tensor& host) {
  if (!host.defined() || OnMac(host)) return host;
  auto* keep = new Tensor(host);
  const c10::Storage& from = host.storage();
  void* memory = shapes_only() ? keep : from.data_ptr().get();
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), from.nbytes(),
      c10::DataPtr(
          memory, keep, [](void* of) { delete static_cast<Tensor*>(of); }, MacDevice::device()),
      /*allocator=*/nullptr, /*resizable=*/false);
  Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                           c10::DispatchKeySet(kKey), host.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
  tensor.unsafeGetTensorImpl()->set_storage_offset(host.storage_offset());
  return tensor;
}

// Products of 16 bits are made in fp32, as a Mac sums them: before 2.1 LibTorch has none of fp16
// for processors, and on those without AVX-512 it sums those of bf16 in bf16.
bool IsWidened(const std::string& name, const Tensor& tensor) {
  return !shapes_only() && tensor.defined() &&
         (tensor.scalar_type() == torch::kHalf || tensor.scalar_type() == torch::kBFloat16) &&
         IsProduct(name);
}

// An argument as the processor takes it. `mac`: whether the device has to do with it.
IValue ToHost(const IValue& argument, bool& mac) {
  const auto note = [&mac](const Tensor& tensor) {
    mac |= OnMac(tensor);
    return HostAlias(tensor);
  };
  if (argument.isTensor()) return note(argument.toTensor());
  if (argument.isTensorList()) {
    std::vector<Tensor> list;
    for (const Tensor& tensor : argument.toTensorVector()) list.push_back(note(tensor));
    return list;
  }
  if (argument.isOptionalTensorList()) {
    decltype(argument.toOptionalTensorList()) list;
    using TensorOrNone = decltype(list)::value_type;
    for (const IValue& one : argument.toListRef()) {
      list.push_back(one.isTensor() ? TensorOrNone(note(one.toTensor())) : TensorOrNone());
    }
    return list;
  }
  if (argument.isDevice() && argument.toDevice().type() == kType) {
    mac = true;
    return c10::Device(shapes_only() ? torch::kMeta : torch::kCPU);
  }
  return argument;
}

IValue FromHost(const IValue& result) {
  if (result.isTensor()) return ToMac(result.toTensor());
  if (!result.isTensorList()) return result;
  std::vector<Tensor> list;
  for (const Tensor& tensor : result.toTensorVector()) list.push_back(ToMac(tensor));
  return list;
}

// An empty place for a result, which the operator makes as large as it needs.
bool IsGrown(const c10::Argument& argument, const IValue& value) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite() && value.isTensor() &&
         OnMac(value.toTensor()) && value.toTensor().numel() == 0;
}

void Become(const Tensor& tensor, const Tensor& other) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(other.storage());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(other.sizes(), other.strides());
}

// Which argument a result is written to: an operator in place, or with a place for its result.
int WrittenArgument(const c10::FunctionSchema& schema, size_t result) {
  const auto* alias = schema.returns()[result].alias_info();
  if (alias == nullptr || !alias->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* argument = schema.arguments()[i].alias_info();
    if (argument != nullptr && argument->isWrite() &&
        argument->beforeSets() == alias->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::string NameOf(const c10::FunctionSchema& schema) {
  return schema.name().substr(schema.name().find("::") + 2);
}

void NoteViolations(const std::vector<std::string>& against) {
  const std::lock_guard lock(mutex);
  for (const std::string& text : against) {
    if (std::find(tally.violations.begin(), tally.violations.end(), text) ==
        tally.violations.end()) {
      tally.violations.push_back(text);
    }
  }
}

void Note(const c10::FunctionSchema& schema, const std::vector<IValue>& arguments) {
  const std::string name = NameOf(schema);
  NoteViolations(queue.DoUploads());
  NoteViolations(AgainstRules(name, schema, arguments));
  const std::lock_guard lock(mutex);
  if (name == "_local_scalar_dense") {
    ++tally.reads;
  } else if (!Allocates(name)) {
    ++tally.launches[name];
    tally.graphs.insert(mac_shapes::Signature(name, arguments));
  }
}

// Whether this launch is one of those that have no effect.
bool IsLost(const c10::FunctionSchema& schema) {
  const bool in_place = schema.returns().size() == 1 && WrittenArgument(schema, 0) >= 0;
  const std::lock_guard lock(mutex);
  if (lost == 0 || Allocates(NameOf(schema))) return false;
  --lost;
  return in_place;
}

// Of shapes only: the result of what is done in place, where nothing is to do, and of ShapeOf.
// None: the operator is to be called.
std::optional<IValue> WithoutCalling(const c10::FunctionSchema& schema, const std::string& name,
                                     const std::vector<IValue>& arguments) {
  if (schema.returns().size() != 1) return std::nullopt;
  const int written = WrittenArgument(schema, 0);
  const bool grows = written >= 0 && IsGrown(schema.arguments()[static_cast<size_t>(written)],
                                             arguments[static_cast<size_t>(written)]);
  if (written >= 0 && !grows) return arguments[static_cast<size_t>(written)];
  const auto shape = mac_shapes::Result(name, arguments);
  if (!shape) return std::nullopt;
  const Tensor& of_its_type = arguments[grows ? static_cast<size_t>(written) : 0].toTensor();
  const Tensor result = ToMac(
      torch::empty(*shape, torch::TensorOptions().dtype(of_its_type.dtype()).device(torch::kMeta)));
  if (!grows) return result;
  Become(arguments[static_cast<size_t>(written)].toTensor(), result);
  return arguments[static_cast<size_t>(written)];
}

// An operator with a kernel for MPS.
void Run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  Note(schema, arguments);
  const std::string name = NameOf(schema);
  if (IsLost(schema)) {
    stack->erase(stack->end() - static_cast<int64_t>(count), stack->end());
    stack->push_back(arguments[static_cast<size_t>(WrittenArgument(schema, 0))]);
    return;
  }
  if (shapes_only()) {
    if (const std::vector<Tensor> norm = mac_shapes::Norm(name, arguments); !norm.empty()) {
      stack->erase(stack->end() - static_cast<int64_t>(count), stack->end());
      for (const Tensor& one : norm) stack->push_back(ToMac(one));
      return;
    }
    std::optional<IValue> result = WithoutCalling(schema, name, arguments);
    if (name == "_local_scalar_dense") result = IValue(c10::Scalar(1));
    if (result) {
      stack->erase(stack->end() - static_cast<int64_t>(count), stack->end());
      stack->push_back(*std::move(result));
      return;
    }
  }
  bool mac = false;
  std::optional<torch::ScalarType> widened;  // from which type
  std::vector<std::pair<Tensor, Tensor>> grown;
  for (size_t i = 0; i < count; ++i) {
    IValue& argument = (*stack)[stack->size() - count + i];
    argument = ToHost(arguments[i], mac);
    if (argument.isTensor() && IsWidened(name, argument.toTensor())) {
      widened = argument.toTensor().scalar_type();
      argument = argument.toTensor().to(torch::kFloat);
    }
    if (!IsGrown(schema.arguments()[i], arguments[i])) continue;
    const Tensor place = torch::empty({0}, argument.toTensor().options());
    argument = place;
    grown.emplace_back(arguments[i].toTensor(), place);
  }
  op.callBoxed(stack);
  for (const auto& [tensor, place] : grown) Become(tensor, ToMac(place));
  const size_t results = schema.returns().size();
  for (size_t i = 0; i < results; ++i) {
    IValue& result = (*stack)[stack->size() - results + i];
    const int written = WrittenArgument(schema, i);
    if (widened) {
      const Tensor narrow = result.toTensor().to(*widened);
      if (written >= 0) HostAlias(arguments[static_cast<size_t>(written)].toTensor()).copy_(narrow);
      result = narrow;
    }
    if (written >= 0) {
      result = arguments[static_cast<size_t>(written)];
    } else if (mac) {
      result = FromHost(result);
    }
  }
}

// Without one. On a Mac this is the end, too.
void Refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  const std::string text =
      absl::StrCat(op.schema().name(), ".", op.schema().overload_name(), " has no kernel for MPS");
  {
    const std::lock_guard lock(mutex);
    tally.violations.push_back(text);
  }
  throw std::runtime_error(text);
}

Tensor CopyFrom(const Tensor& from, const Tensor& to, bool non_blocking) {
  const auto bytes = static_cast<int64_t>(from.nbytes());
  const bool waits = !non_blocking && !(OnMac(from) && OnMac(to));
  NoteViolations(AgainstRulesOfCopies(from, to, non_blocking));
  {
    const std::lock_guard lock(mutex);
    if (waits) ++(OnMac(from) ? tally.waits : tally.waits_up);
    if (!OnMac(from)) {
      tally.bytes_to_device += bytes;
    } else if (!OnMac(to)) {
      tally.bytes_to_host += bytes;
    } else {
      ++tally.launches["copy_"];
    }
  }
  if (shapes_only()) {
    if (!OnMac(to)) to.fill_(1);
    return to;
  }
  if (waits) queue.DoAll();
  if (non_blocking && !OnMac(to)) {
    NoteViolations(queue.DoUploads());  // the queue has an order
    queue.CopyToHost(HostAlias(from).clone(), to);
  } else if (non_blocking && !OnMac(from)) {
    queue.CopyToDevice(from, HostAlias(to));
  } else {
    NoteViolations(queue.DoUploads());
    HostAlias(to).copy_(HostAlias(from));
  }
  return to;
}

Tensor View(const Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
Tensor ReshapeAlias(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Refuse>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", CopyFrom);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", View);
  m.impl("_reshape_alias", ReshapeAlias);
}

// Once a process, from the table.
void RegisterKernels() {
  static torch::Library library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  static bool done = false;
  if (std::exchange(done, true)) return;
  const std::set<std::string> own = {"_copy_from", "as_strided", "view", "_reshape_alias"};
  for (const std::string& name : MpsKernels()) {
    if (own.count(name) > 0) continue;
    const size_t dot = name.find('.');
    const bool known = c10::Dispatcher::singleton()
                           .findSchema({absl::StrCat("aten::", name.substr(0, dot)),
                                        dot == std::string::npos ? "" : name.substr(dot + 1)})
                           .has_value();
    if (known) library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&Run>());
  }
}

}  // namespace

int64_t MacDevice::Tally::all_launches() const {
  int64_t sum = 0;
  for (const auto& [name, count] : launches) sum += count;
  return sum;
}

MacDevice::MacDevice(Mode wanted) {
  mode = wanted;
  RegisterKernels();
  queue.Clear();
  Lose(0);
  Restart();
}

MacDevice::~MacDevice() { mode = Mode::kComputes; }

MacDevice::Tally MacDevice::tally() const {
  const std::lock_guard lock(mutex);
  return espalier::tally;
}

void MacDevice::Lose(int64_t launches) {
  const std::lock_guard guard(mutex);
  lost = launches;
}

void MacDevice::Restart() {
  const std::lock_guard lock(mutex);
  espalier::tally = {};
}

}  // namespace espalier
