// A backend of torch for tests: a device "hostdev" with memory of its own, which ends, with one stream and events.
//
// Its kernels are the CPU's: whatever torch asks for is copied out of the device's memory, computed, and copied back.
// Arithmetic in place goes to a thread, as work goes to a device: the call returns before it is done. All else waits
// for it, and is done when its call returns. HOSTDEV_LIE names something that the backend then does wrong.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr size_t kBlock = 512;

size_t memory_of_each() {
  const char* given = std::getenv("HOSTDEV_MEMORY_MIB");
  return static_cast<size_t>(given ? std::atoll(given) : 1024) << 20;
}

bool lies(const char* about) {
  const char* given = std::getenv("HOSTDEV_LIE");
  return given != nullptr && std::string(given) == about;
}

thread_local c10::DeviceIndex current_device = 0;

// Work in its order, done by a thread of its own. What it held is let go by whoever submits or waits.
class Queue {
 public:
  void submit(std::function<void()> task) {
    std::deque<std::function<void()>> done;
    std::unique_lock<std::mutex> guard(mutex_);
    if (!started_) std::thread([this] { work(); }).detach();
    started_ = true;
    waiting_.push_back(std::move(task));
    done.swap(done_);
    changed_.notify_all();
    guard.unlock();
  }
  void drain() {
    if (is_worker) return;
    std::deque<std::function<void()>> done;
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [this] { return waiting_.empty(); });
    done.swap(done_);
    guard.unlock();
  }

 private:
  static inline thread_local bool is_worker = false;
  void work() {
    is_worker = true;
    at::AutoDispatchBelowADInplaceOrView below;
    std::unique_lock<std::mutex> guard(mutex_);
    while (true) {
      changed_.wait(guard, [this] { return !waiting_.empty(); });
      guard.unlock();
      waiting_.front()();  // a deque keeps its elements where they are
      guard.lock();
      done_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_, done_;
  bool started_ = false;
};
Queue& queue = *new Queue();  // outlives the thread


struct Counter {
  size_t now = 0, peak = 0;
};
std::mutex lock;
Counter counters[kDevices];
double fractions[kDevices] = {1.0, 1.0};

struct Block {
  void* data;
  size_t size;
  c10::DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> guard(lock);
    if (!lies("memory") && !lies("counters")) counters[block->device].now -= block->size;
  }
  std::free(block->data);
  delete block;
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t asked) override {
    const auto device = current_device;
    const size_t size = (asked + kBlock - 1) / kBlock * kBlock;
    if (size == 0) return {nullptr, nullptr, &release_none, c10::Device(kDevice, device)};
    {
      std::lock_guard<std::mutex> guard(lock);
      auto& counter = counters[device];
      const auto most = static_cast<size_t>(memory_of_each() * fractions[device]);
      TORCH_CHECK_WITH(
          OutOfMemoryError, counter.now + size <= most, "HOSTDEV out of memory. Tried to allocate ", size,
          " bytes. Device ", static_cast<int>(device), " has ", most - std::min(most, counter.now), " bytes free.");
      counter.now += lies("counters") ? 0 : size;
      counter.peak = std::max(counter.peak, counter.now);
    }
    void* data = std::aligned_alloc(kBlock, size);
    return {data, new Block{data, size, device}, &release, c10::Device(kDevice, device)};
  }
  static void release_none(void*) {}
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(lock);
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* array : {&stats.allocated_bytes, &stats.reserved_bytes}) {
      (*array)[0].current = static_cast<int64_t>(counters[device].now);
      (*array)[0].peak = static_cast<int64_t>(counters[device].peak);
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(lock);
    counters[device].peak = counters[device].now;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(lock);
    return {memory_of_each() - counters[device].now, memory_of_each()};
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kDevice, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there is no hostdev:", static_cast<int>(device.index()));
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    TORCH_CHECK(!lies("no_events"), "hostdev has no events");
    if (*event == nullptr) *event = new int64_t;
    auto* passed_ns = static_cast<int64_t*>(*event);
    auto pass = [passed_ns] {
      *passed_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
              .count();
    };
    if (lies("host_events")) return pass();  // when it is submitted, and not when its turn comes
    queue.submit(pass);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    queue.drain();
    return true;
  }
  void synchronizeEvent(void*) const override { queue.drain(); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    queue.drain();
    delete static_cast<int64_t*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    if (lies("negative")) std::swap(begin, end);
    if (lies("constant")) return 1.0;
    return static_cast<double>(*static_cast<int64_t*>(end) - *static_cast<int64_t*>(begin)) / 1e6;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { queue.drain(); }
  void synchronizeDevice(c10::DeviceIndex) const override {
    if (!lies("synchronize")) queue.drain();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({kDevice, device}); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({kDevice, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
};
struct Registered {
  Registered() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }
} registered;

// The same memory, as a tensor of the CPU.
at::Tensor memory_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor on_host(const at::Tensor& tensor) {
  queue.drain();
  if (tensor.device().is_cpu()) return tensor;
  return memory_of(tensor);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  const auto type = c10::scalarTypeToTypeMeta(dtype.value_or(at::kFloat));
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::typeMetaToScalarType(type));
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat), format);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(
    const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(
    at::Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(
      self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> at_element;
  if (offset) at_element = offset->expect_int();
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at_element);
}

// The CPU has no kernel of this name: torch picks one of its own for convolutions there.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups) {
  std::optional<at::Tensor> added;
  if (bias && bias->defined()) added = on_host(*bias);
  return at::convolution(
             on_host(input), on_host(weight), added, stride, padding, dilation, transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> wanted) {
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), std::nullopt, stride, padding, dilation, transposed,
      output_padding, groups, wanted);
  auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  return {back(of_input), back(of_weight), back(of_bias)};
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  queue.drain();
  at::native::cpu_fallback(op, stack);
}

// Runs an operator that changes its first argument and returns it, when its turn comes.
void in_place(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, arguments[0]);
  torch::jit::Stack on_cpu = arguments;
  for (auto& value : on_cpu)
    if (value.isTensor() && !value.toTensor().device().is_cpu()) value = memory_of(value.toTensor());
  queue.submit([op, arguments = std::move(arguments), on_cpu = std::move(on_cpu)]() mutable { op.callBoxed(&on_cpu); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const auto* name : {"add_.Tensor", "mul_.Tensor", "relu_"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_place>());
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("as_strided", &as_strided);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("device_count", [] { return kDevices; });
  module.def("current_device", [] { return static_cast<int>(current_device); });
  module.def("set_device", [](int index) { Guard().setDevice({kDevice, static_cast<c10::DeviceIndex>(index)}); });
  module.def("set_fraction", [](double fraction, int index) {
    std::lock_guard<std::mutex> guard(lock);
    fractions[index] = fraction;
  });
}
