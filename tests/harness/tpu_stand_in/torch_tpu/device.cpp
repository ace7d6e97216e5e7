// A device for tests, registered as torch's `PrivateUse1`: its memory is the host's, each operation is that of the CPU, and it counts and
// times what a real device does. Tensors on it are not CPU tensors: torch refuses to mix them, and copies are made explicitly.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <mutex>

namespace {

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;
constexpr auto kDevice = DeviceType::PrivateUse1;
constexpr DeviceIndex kCount = 2;
thread_local DeviceIndex current = 0;

// Memory: counted as it is used and given back, without a cache.
struct Memory final : c10::DeviceAllocator {
  struct Block {
    void* data;
    size_t bytes;
    DeviceIndex device;
  };
  std::mutex lock;
  c10::CachingDeviceAllocator::DeviceStats stats[kCount];

  void count(DeviceIndex device, int64_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    for (auto* each : {&stats[device].allocated_bytes[0], &stats[device].reserved_bytes[0]}) {
      bytes > 0 ? each->increase(bytes) : each->decrease(-bytes);
    }
  }
  static void release(void* context);
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override { return stats[device]; }
  void resetAccumulatedStats(DeviceIndex device) override { reset(device, &c10::CachingAllocator::Stat::reset_accumulated); }
  void resetPeakStats(DeviceIndex device) override { reset(device, &c10::CachingAllocator::Stat::reset_peak); }
  void reset(DeviceIndex device, void (c10::CachingAllocator::Stat::*what)()) {
    std::lock_guard<std::mutex> guard(lock);
    (stats[device].allocated_bytes[0].*what)();
    (stats[device].reserved_bytes[0].*what)();
  }
};
Memory memory;

void Memory::release(void* context) {
  auto* block = static_cast<Block*>(context);
  std::free(block->data);
  memory.count(block->device, -static_cast<int64_t>(block->bytes));
  delete block;
}
c10::DataPtr Memory::allocate(size_t bytes) {
  auto* block = new Block{std::aligned_alloc(64, (bytes + 127) / 64 * 64), bytes, current};
  if (bytes) count(current, static_cast<int64_t>(bytes));
  return {block->data, block, &release, Device(kDevice, current)};
}
REGISTER_ALLOCATOR(kDevice, &memory);

// Devices, one stream each, and events with the time of their record.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Clock = std::chrono::steady_clock;
  DeviceType type() const override { return kDevice; }
  Device exchangeDevice(Device device) const override {
    auto before = current;
    current = device.index();
    return Device(kDevice, before);
  }
  Device getDevice() const override { return Device(kDevice, current); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kCount, "there are ", int(kCount), " devices, and no number ", int(device.index()));
    current = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return kCount; }
  void record(void** event, const Stream&, DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Clock::time_point();
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Clock::time_point*>(event); }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
  double elapsedTime(void* first, void* last, DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Clock::time_point*>(last) - *static_cast<Clock::time_point*>(first)).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kCount; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { current = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return device < 0 ? current : exchangeDevice(device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = memory.allocate(bytes);
    if (auto kept = std::min(bytes, storage.nbytes())) std::memcpy(data.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};
const bool registered = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

// Operations: tensors are made and copied here, and everything else is done by the CPU between copies.
at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
using Dtype = std::optional<at::ScalarType>;
using Kind = std::optional<at::Layout>;
using Place = std::optional<Device>;

at::Tensor empty(at::IntArrayRef size, Dtype dtype, Kind, Place place, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(place);
  return at::detail::empty_generic(size, &memory, kKeys, c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, Dtype dtype, Kind, Place place, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(place);
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys, c10::dtype_or_default(dtype));
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  auto target = to.is_cpu() ? to : on_host(to);
  target.copy_(from.is_cpu() ? from : on_host(from));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}
at::Scalar local_scalar(const at::Tensor& tensor) { return on_host(tensor).item(); }
at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, storage, offset, size, stride);
}
void by_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) { at::native::cpu_fallback(operation, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", at::native::resize_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace
