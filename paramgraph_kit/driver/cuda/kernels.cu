// The three kernels of the launcher: fill and copy stand in for memset and memcpy nodes, patch writes addresses.

typedef unsigned long long u64;
typedef unsigned int u32;

extern "C" __global__ void pgk_fill(char* out, u64 width, u64 height, u64 pitch, u32 value, u32 element) {
  u64 total = width * height, step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
    char* p = out + (i / width) * pitch + (i % width) * element;
    if (element == 4) *(u32*)p = value;
    else if (element == 2) *(unsigned short*)p = (unsigned short)value;
    else *(unsigned char*)p = (unsigned char)value;
  }
}

extern "C" __global__ void pgk_copy(char* out, const char* in, u64 width, u64 height, u64 depth,
                                    u64 out_pitch, u64 out_slice, u64 in_pitch, u64 in_slice) {
  u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
  bool flat = height == 1 && depth == 1;
  if (flat && ((((u64)out | (u64)in | width) & 15) == 0)) {
    for (u64 i = first; i < width / 16; i += step) ((uint4*)out)[i] = ((const uint4*)in)[i];
    return;
  }
  u64 total = width * height * depth;
  for (u64 i = first; i < total; i += step) {
    u64 x = i % width, y = i / width % height, z = i / width / height;
    out[z * out_slice + y * out_pitch + x] = in[z * in_slice + y * in_pitch + x];
  }
}

// One thread a word. The table of today's addresses travels by value in the parameters.
struct Binding { cudaGraphDeviceNode_t node; u32 offset; u32 slot; long long delta; };
template <int N> struct Table { u64 address[N]; };

template <int N> __device__ void patch(const Table<N>& table, const Binding* bindings, u32 count) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Binding b = bindings[i];
  u64 value = table.address[b.slot] + b.delta;
  cudaGraphKernelNodeSetParam(b.node, b.offset, &value, sizeof value);
}

#define PATCH(N) \
  extern "C" __global__ void pgk_patch_##N(const __grid_constant__ Table<N> table, const Binding* bindings, u32 count) { \
    patch(table, bindings, count); \
  }
PATCH(16) PATCH(64) PATCH(256) PATCH(1024) PATCH(4000)
